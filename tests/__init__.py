"""The suite; a package, so that tests of different folders may share a file name."""
