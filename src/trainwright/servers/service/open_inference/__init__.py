"""The open inference protocol (KServe's version 2), over REST and gRPC."""
