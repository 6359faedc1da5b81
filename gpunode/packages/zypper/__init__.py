"""zypper: SLES and openSUSE Leap."""
