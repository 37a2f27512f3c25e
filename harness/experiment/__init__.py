"""What is asked: experiments, their options, and the parsing of a request. Knows no cluster."""
