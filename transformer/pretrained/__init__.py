"""Other people's weights in the models of this book, and ours in theirs."""
