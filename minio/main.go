// Command minio is the MinIO server with Tarn's rule for credentials in front: they come from secret files only,
// and known or short ones are refused.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	server "github.com/minio/minio/cmd"
)

const (
	secretsDirDefault = "/run/tarn/secrets"
	userCharsMin      = 8
	passwordCharsMin  = 20
)

// refused are credentials that every scanner tries first.
var refused = map[string]bool{
	"minioadmin": true, "minio": true, "minio123": true, "miniosecret": true, "admin": true, "root": true,
	"accesskey": true, "secretkey": true, "password": true, "changeme": true, "administrator": true,
}

// fromOutside are the variables that would put a credential into `docker inspect`.
var fromOutside = []string{
	"MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD", "MINIO_ACCESS_KEY", "MINIO_SECRET_KEY", "MINIO_CONFIG_ENV_FILE",
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "server" {
		if err := takeCredentials(); err != nil {
			fmt.Fprintln(os.Stderr, "minio: refused to start:", err)
			os.Exit(64)
		}
	}
	server.Main(os.Args)
}

// takeCredentials points MinIO at the secret files, after looking at what is in them.
func takeCredentials() error {
	for _, name := range fromOutside {
		if _, ok := os.LookupEnv(name); ok {
			return fmt.Errorf("%s is set; credentials are read from files in TARN_SECRETS_DIR only, unset it", name)
		}
	}
	dir := os.Getenv("TARN_SECRETS_DIR")
	if dir == "" {
		dir = secretsDirDefault
	}
	userFile, passwordFile := filepath.Join(dir, "root_user"), filepath.Join(dir, "root_password")
	user, err := read(userFile, userCharsMin)
	if err != nil {
		return err
	}
	password, err := read(passwordFile, passwordCharsMin)
	if err != nil {
		return err
	}
	if user == password {
		return fmt.Errorf("%s and %s hold the same value; make them differ", userFile, passwordFile)
	}
	return errors.Join(
		os.Setenv("MINIO_ROOT_USER_FILE", userFile),
		os.Setenv("MINIO_ROOT_PASSWORD_FILE", passwordFile),
	)
}

// read returns the trimmed content of a secret file, or why it cannot be used; the content itself is never told.
func read(path string, charsMin int) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%w; the init service writes it, mount its volume for minio there", err)
	}
	value := strings.TrimSpace(string(content))
	if refused[strings.ToLower(value)] {
		return "", fmt.Errorf("%s holds a well-known default; write a random value", path)
	}
	if len(value) < charsMin {
		return "", fmt.Errorf("%s holds %d characters, %d are needed; write a longer random value",
			path, len(value), charsMin)
	}
	return value, nil
}
