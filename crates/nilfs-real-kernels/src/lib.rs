//! nilfs-real-kernels
