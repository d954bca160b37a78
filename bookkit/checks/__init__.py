"""The checks behind the exercises, one module for each chapter that has some."""
