"""Episodes: what a policy did, as records of token ids."""
