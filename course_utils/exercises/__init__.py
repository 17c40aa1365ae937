"""One module per section; one observer per exercise."""
