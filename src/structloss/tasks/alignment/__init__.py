"""When each phone of a recording starts: recordings, transcripts with times, features, and corpora of all of them."""
