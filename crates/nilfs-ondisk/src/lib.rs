//! nilfs-ondisk
