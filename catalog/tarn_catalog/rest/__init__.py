"""The Iceberg REST protocol: requests, responses, routes, authentication, the server."""
