//! nilfs-check
