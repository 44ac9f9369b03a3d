//! nilfs-sim
