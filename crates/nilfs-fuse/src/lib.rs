//! nilfs-fuse
