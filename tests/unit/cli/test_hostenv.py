"""The output of `tarn env` is parsed correctly by the supported shells, value by value."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tarn.adapters.kafka_login import Login
from tarn.cli.hostenv import exports, host_env
from tarn.cli.settings import Secrets, Settings
from tarn.core.errors import InvalidError

SECRETS = Secrets(
    access_key="TARNCLIAAAAAAAAAAAAA",
    secret_key="s-_secret",
    credential="cli-ab12cd:x-_y",
    jupyter_token="j-_token",
    spark_token="s-_token",
)

NAMES = {
    "TARN_CATALOG_URI",
    "TARN_CATALOG_CREDENTIAL",
    "TARN_WAREHOUSE",
    "TARN_S3_BUCKET",
    "TARN_S3_ENDPOINT",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
    "TARN_TRINO_URI",
    "TARN_TRINO_USER",
    "TARN_TRINO_PASSWORD",
    "TARN_TRINO_EXTRA_CREDENTIALS",
    "TARN_TRINO_CATALOG",
    "TARN_GATEWAY_URI",
    "TARN_INGEST_URI",
    "TARN_STREAM_URI",
    "TARN_KAFKA_BOOTSTRAP",
    "TARN_KAFKA_SECURITY_PROTOCOL",
    "TARN_KAFKA_SASL_MECHANISM",
    "TARN_KAFKA_USERNAME",
    "TARN_KAFKA_PASSWORD",
    "TARN_SPARK_REMOTE",
    "TARN_JUPYTER_URL",
}


LOGIN = Login(user="cli", password="k-_secret")


def settings(**changes) -> Settings:
    ports = {
        "port_s3": 19000,
        "port_catalog": 18181,
        "port_kafka": 19092,
        "port_spark": 25002,
        "port_trino": 18080,
        "port_gateway": 18090,
        "port_ingest": 18091,
        "port_stream": 18092,
        "port_jupyter": 18888,
    }
    return Settings(**{**ports, **changes})


def test_every_address_is_on_loopback_at_the_published_port():
    variables = host_env(settings(region="eu-west-1", warehouse="lake", bucket="other"), SECRETS, LOGIN)
    assert set(variables) == NAMES
    assert variables["TARN_CATALOG_URI"] == "http://127.0.0.1:18181"
    assert variables["TARN_S3_ENDPOINT"] == "http://127.0.0.1:19000"
    assert variables["TARN_S3_BUCKET"] == "other"
    assert variables["TARN_TRINO_URI"] == "http://127.0.0.1:18080"
    assert variables["TARN_GATEWAY_URI"] == "http://127.0.0.1:18090"
    assert variables["TARN_INGEST_URI"] == "http://127.0.0.1:18091"
    assert variables["TARN_STREAM_URI"] == "http://127.0.0.1:18092"
    assert variables["TARN_KAFKA_BOOTSTRAP"] == "127.0.0.1:19092"
    login = {name: variables[f"TARN_KAFKA_{name}"] for name in ("SECURITY_PROTOCOL", "SASL_MECHANISM")}
    assert login == {"SECURITY_PROTOCOL": "SASL_PLAINTEXT", "SASL_MECHANISM": "SCRAM-SHA-512"}
    assert (variables["TARN_KAFKA_USERNAME"], variables["TARN_KAFKA_PASSWORD"]) == ("cli", "k-_secret")
    assert variables["TARN_SPARK_REMOTE"] == "sc://localhost:25002/;token=s-_token"
    assert variables["TARN_JUPYTER_URL"] == ("http://127.0.0.1:18888/lab/tree/tarn/start.md?token=j-_token")
    assert variables["TARN_CATALOG_CREDENTIAL"] == "cli-ab12cd:x-_y"
    assert variables["AWS_ACCESS_KEY_ID"] == "TARNCLIAAAAAAAAAAAAA"
    assert variables["AWS_SECRET_ACCESS_KEY"] == "s-_secret"
    assert (variables["AWS_REGION"], variables["TARN_WAREHOUSE"]) == ("eu-west-1", "lake")


NASTY = {"A": "plain", "B": "it's", "C": "two words; rm -rf $HOME `id`", "D": "", "E": "back\\slash\\'"}


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_reads_exactly_these_values(shell: str):
    path = shutil.which(shell)
    assert path, f"no {shell} on this machine"
    script = exports(NASTY, "sh") + "".join(f'printf "%s\\0" "${name}"\n' for name in NASTY)
    done = subprocess.run([path, "-eu", "-c", script], capture_output=True, check=True, timeout=10)
    assert done.stdout.decode().split("\0")[:-1] == list(NASTY.values())


def test_fish_gets_its_own_words_and_quotes():
    assert exports({"A": "it's \\ here"}, "fish") == "set -gx A 'it\\'s \\\\ here'\n"


def test_an_unknown_shell_is_refused_with_the_choices():
    with pytest.raises(InvalidError, match="'powershell'; choose sh"):
        exports({}, "powershell")


def test_secrets_do_not_show_in_a_repr():
    shown = repr(SECRETS)
    assert SECRETS.access_key in shown
    tokens = (SECRETS.jupyter_token, SECRETS.spark_token)
    assert not [one for one in (SECRETS.secret_key, "x-_y", *tokens) if one in shown]
    assert "k-_secret" not in repr(LOGIN)
