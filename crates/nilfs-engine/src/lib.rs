//! nilfs-engine
