"""The mathematics of the paper: functions of arrays. Imports no other package of bnpo."""
