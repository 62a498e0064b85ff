//! Volumes for container engines: what they call is answered here, and what a call needs of a
//! volume is done by processes of this program that outlive the one that started them.
//!
//! | module | purpose |
//! |---|---|
//! | `names` | volumes' names, as an engine may give them |
//! | `program` | another process of this program: started, waited for, its words kept |
//! | `mounts` | a volume at a directory: what is there, mounting it, unmounting it |
//! | `records` | a file for each volume, replaced atomically, read strictly |
//! | `turns` | the calls for one volume one after another; a call that is late goes on without its caller |
//! | `credentials` | the keys of a volume's bucket, which its processes get in their environment |
//! | `listener` | the unix socket that engines call |
//! | `docker` | `docker-plugin`: the volume plugin protocol of Docker and Podman |
//! | `csi` | `csi`: the driver of Kubernetes, by the Container Storage Interface |

mod credentials;
#[cfg(feature = "csi")]
pub mod csi;
pub mod docker;
mod listener;
mod mounts;
mod names;
mod program;
mod records;
mod turns;
