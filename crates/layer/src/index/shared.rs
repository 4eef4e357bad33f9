//! [`Shared`]: a value that many entries of a layer have in common.

use std::borrow::Borrow;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A value that is in memory once, however many entries have it. Changing one of them copies it first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Shared<T>(Arc<T>);

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

/// Allows look-ups with a plain value in a set of shared ones. Hashes and compares like the value.
impl<T> Borrow<T> for Shared<T> {
    fn borrow(&self) -> &T {
        &self.0
    }
}
