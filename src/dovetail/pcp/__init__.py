"""The pcp fabric: a pure core of a broker and of its clients, and the codecs of both protocol versions."""
