"""One adapter per framework, and what several of them share."""
