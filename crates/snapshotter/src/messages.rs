//! The messages of `containerd.services.snapshots.v1`, with containerd's field numbers.

use std::collections::HashMap;

use prost::{Enumeration, Message};

/// Prefix of the path of each method.
pub(crate) const SERVICE: &str = "/containerd.services.snapshots.v1.Snapshots/";

/// For `Prepare` and `View`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateRequest {
    #[prost(string, tag = "1")]
    pub(crate) snapshotter: String,
    #[prost(string, tag = "2")]
    pub(crate) key: String,
    #[prost(string, tag = "3")]
    pub(crate) parent: String,
    #[prost(map = "string, string", tag = "4")]
    pub(crate) labels: HashMap<String, String>,
}

/// For `Mounts`, `Remove`, `Stat` and `Usage`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyRequest {
    #[prost(string, tag = "1")]
    pub(crate) snapshotter: String,
    #[prost(string, tag = "2")]
    pub(crate) key: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CommitRequest {
    #[prost(string, tag = "1")]
    pub(crate) snapshotter: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) key: String,
    #[prost(map = "string, string", tag = "4")]
    pub(crate) labels: HashMap<String, String>,
    /// Since containerd 2.2: the parent of the snapshot, if it was not known before.
    #[prost(string, tag = "5")]
    pub(crate) parent: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct UpdateRequest {
    #[prost(string, tag = "1")]
    pub(crate) snapshotter: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) info: Option<Info>,
    #[prost(message, optional, tag = "3")]
    pub(crate) update_mask: Option<FieldMask>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListRequest {
    #[prost(string, tag = "1")]
    pub(crate) snapshotter: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) filters: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CleanupRequest {
    #[prost(string, tag = "1")]
    pub(crate) snapshotter: String,
}

/// Of `Prepare`, `View` and `Mounts`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MountsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) mounts: Vec<Mount>,
}

/// Of `Stat` and `Update`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InfoResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) info: Option<Info>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) info: Vec<Info>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct UsageResponse {
    #[prost(int64, tag = "1")]
    pub(crate) size: i64,
    #[prost(int64, tag = "2")]
    pub(crate) inodes: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Empty {}

/// A mount that containerd performs, as for mount(2).
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) r#type: String,
    #[prost(string, tag = "2")]
    pub(crate) source: String,
    #[prost(string, tag = "3")]
    pub(crate) target: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) options: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Info {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) parent: String,
    #[prost(enumeration = "Kind", tag = "3")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "4")]
    pub(crate) created_at: Option<Timestamp>,
    #[prost(message, optional, tag = "5")]
    pub(crate) updated_at: Option<Timestamp>,
    #[prost(map = "string, string", tag = "6")]
    pub(crate) labels: HashMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(crate) enum Kind {
    Unknown = 0,
    View = 1,
    Active = 2,
    Committed = 3,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

/// `google.protobuf.FieldMask`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FieldMask {
    #[prost(string, repeated, tag = "1")]
    pub(crate) paths: Vec<String>,
}
