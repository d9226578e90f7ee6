"""One-shot jobs that prepare the stack: `init` (credentials), `store` (the bucket, users and policies)."""
