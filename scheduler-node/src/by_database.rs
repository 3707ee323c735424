//! One value for each database, in the order in which this node came to use the databases.
//!
//! Databases join a node while it runs and none leaves it before its end, so an index and a reference stay valid. The
//! order is this node's own: between nodes and in what clients hold, a name stands for a database.

use std::{ops::Index, sync::Arc};

use common::ids::DatabaseIndex;

/// Values that are only ever added. Clones share them.
#[derive(Debug)]
pub struct ByDatabase<T>(Arc<boxcar::Vec<T>>);

impl<T> ByDatabase<T> {
    /// Adds the value of the next database. Only the node's own task adds, one database after the other.
    pub fn push(&self, value: T) -> DatabaseIndex {
        DatabaseIndex::new(self.0.push(value))
    }

    pub fn get(&self, index: DatabaseIndex) -> Option<&T> {
        self.0.get(index.get())
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }

    pub fn indexed(&self) -> impl Iterator<Item = (DatabaseIndex, &T)> {
        self.0.iter().map(|(index, value)| (DatabaseIndex::new(index), value))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.iter().count()
    }
}

impl<T> Clone for ByDatabase<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for ByDatabase<T> {
    fn default() -> Self {
        Self(Arc::new(boxcar::Vec::new()))
    }
}

impl<T> FromIterator<T> for ByDatabase<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self(Arc::new(values.into_iter().collect()))
    }
}

impl<T> Index<DatabaseIndex> for ByDatabase<T> {
    type Output = T;

    fn index(&self, index: DatabaseIndex) -> &T {
        &self.0[index.get()]
    }
}

impl<T> Index<usize> for ByDatabase<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.0[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_stays_in_its_place_while_more_is_added() {
        let values: ByDatabase<String> = ["main".to_owned()].into_iter().collect();
        let (clone, first) = (values.clone(), &values[DatabaseIndex::HOME]);
        for number in 1..100 {
            assert_eq!(clone.push(format!("db{number}")).get(), number);
        }
        assert_eq!((first.as_str(), values.len(), values[99].as_str()), ("main", 100, "db99"));
        assert_eq!(values.get(DatabaseIndex::new(100)), None);
        assert!(values.indexed().all(|(index, value)| value == &clone[index]));
    }

    #[test]
    fn a_reader_beside_the_writer_sees_the_values_in_order_and_whole() {
        let values: ByDatabase<Vec<usize>> = ByDatabase::default();
        let reader = values.clone();
        let reading = std::thread::spawn(move || {
            while reader.len() < 1_000 {
                assert!(reader.iter().enumerate().all(|(index, value)| value == &[index; 3]));
            }
        });
        for number in 0..1_000 {
            values.push(vec![number; 3]);
        }
        reading.join().expect("the reader saw nothing else");
    }
}
