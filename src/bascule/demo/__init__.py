"""`make run`: a broker, a sample stream and a live Spark pipeline on one screen."""
