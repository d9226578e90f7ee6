"""The controller: brings the writers of ingestors to what their specs declare."""
