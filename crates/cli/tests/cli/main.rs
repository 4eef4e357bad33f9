//! The command as its users see it: the real binary, with registries on loopback, layouts and archives.

mod access;
mod containers;
mod convert;
mod demo;
mod doctor;
mod documentation;
mod endpoints;
mod errors;
mod help;
mod host;
mod indexes;
mod interrupt;
mod isolation;
mod local;
mod lock;
mod login;
mod mounts;
mod prefetch;
mod pull;
mod terminal;
mod tier;
mod tls;
mod trace;
mod world;
