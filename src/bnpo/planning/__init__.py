"""The rows of the paper's tables, and what a run or an evaluation would take, told without a GPU, a network or a loaded
model. Nothing else imports it."""
