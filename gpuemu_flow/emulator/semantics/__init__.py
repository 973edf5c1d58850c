"""What each PTX instruction computes, as functions over numpy arrays of lanes."""
