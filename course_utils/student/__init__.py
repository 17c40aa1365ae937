"""What a student does beside the notebooks: set up, look before handing in, hand in, put a cell back."""
