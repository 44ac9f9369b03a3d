//! What the fuzz targets share.
//!
//! | module | what lives there |
//! |---|---|
//! | `volumes` | sound volumes, made when a target starts |
//! | `forgery` | a volume edited as an input says, and checksums that fit the edits |
//! | `tour` | looking at whatever a volume shows |
//! | `memory_file` | a file that lies in memory |

pub mod forgery;
pub mod memory_file;
pub mod tour;
pub mod volumes;
