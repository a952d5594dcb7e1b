"""How many candidates a round verifies, and whose: fixed, or chosen to make committed tokens cheap."""
