"""One-shots that prepare the stack: `init` makes credentials; `store` the bucket, users and policies."""
