//! Pictures: SVG with labelled axes, readable on a light and on a dark page.

pub(super) mod axis;
pub(super) mod bars;
mod canvas;
mod colours;
pub(super) mod lines;
pub(super) mod timeline;

pub(super) use canvas::escaped;
