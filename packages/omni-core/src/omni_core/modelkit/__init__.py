"""What model packages are built from: parts that more than one family of models needs, and that know none of them."""
