//! nilfs-device
