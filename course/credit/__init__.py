"""Credit: from rewards to what each action is given. Pure functions between a finished rollout and a policy's loss."""
