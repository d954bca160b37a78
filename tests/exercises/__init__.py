"""Do the exercises' checks know right from wrong?"""
