"""What headers of requests and responses mean: content types, request ids, the origins and hosts of web pages."""
