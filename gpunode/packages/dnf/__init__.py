"""dnf, and yum 3 as its dialect: RHEL and its kin, Fedora, Amazon Linux 2023."""
