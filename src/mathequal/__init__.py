"""Whether an answer is right: equality of final answers, rewards, and worker processes that can be killed."""
