//! Cached objects of one kind, by name.

use std::{borrow::Borrow, collections::BTreeMap, ops::Index, sync::Arc};

use k8s_openapi::{Metadata, apimachinery::pkg::apis::meta::v1::ObjectMeta};

/// Objects of one kind and namespace, by `metadata.name`. They are shared with caches; the first change of an object
/// copies it.
#[derive(Clone, Debug, PartialEq)]
pub struct ByName<K>(BTreeMap<String, Arc<K>>);

impl<K> Default for ByName<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K> ByName<K> {
    /// The object of this name.
    pub fn get<Q: Ord + ?Sized>(&self, name: &Q) -> Option<&K>
    where
        String: Borrow<Q>,
    {
        self.0.get(name).map(AsRef::as_ref)
    }

    /// Whether there is an object of this name.
    pub fn contains_key<Q: Ord + ?Sized>(&self, name: &Q) -> bool
    where
        String: Borrow<Q>,
    {
        self.0.contains_key(name)
    }

    /// The names, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &String> {
        self.0.keys()
    }

    /// The objects, in the order of their names.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.values().map(AsRef::as_ref)
    }

    /// The objects, still shared.
    pub fn shared(&self) -> impl DoubleEndedIterator<Item = &Arc<K>> {
        self.0.values()
    }

    /// Names and objects, in the order of the names.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&String, &K)> {
        self.0.iter().map(|(name, object)| (name, object.as_ref()))
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes all objects.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Removes the objects for which `stays` returns false.
    pub fn retain(&mut self, mut stays: impl FnMut(&str, &K) -> bool) {
        self.0.retain(|name, object| stays(name, object));
    }
}

impl<K: Metadata<Ty = ObjectMeta>> ByName<K> {
    /// Adds an object, or replaces the one of the same name.
    pub fn insert(&mut self, object: K) {
        self.share(Arc::new(object));
    }

    fn share(&mut self, object: Arc<K>) {
        self.0.insert(object.metadata().name.clone().unwrap_or_default(), object);
    }
}

impl<K: Clone> ByName<K> {
    /// The object of this name, mutable except for its name.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, name: &Q) -> Option<&mut K>
    where
        String: Borrow<Q>,
    {
        self.0.get_mut(name).map(Arc::make_mut)
    }

    /// Removes the object of this name.
    pub fn remove<Q: Ord + ?Sized>(&mut self, name: &Q) -> Option<K>
    where
        String: Borrow<Q>,
    {
        self.0.remove(name).map(Arc::unwrap_or_clone)
    }

    /// The objects, mutable except for their names.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut K> {
        self.0.values_mut().map(Arc::make_mut)
    }
}

impl<K, Q: Ord + ?Sized> Index<&Q> for ByName<K>
where
    String: Borrow<Q>,
{
    type Output = K;

    fn index(&self, name: &Q) -> &K {
        &self.0[name]
    }
}

impl<K: Metadata<Ty = ObjectMeta>> Extend<K> for ByName<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, objects: I) {
        objects.into_iter().for_each(|object| self.insert(object));
    }
}

impl<K: Metadata<Ty = ObjectMeta>> FromIterator<Arc<K>> for ByName<K> {
    fn from_iter<I: IntoIterator<Item = Arc<K>>>(objects: I) -> Self {
        let mut all = Self::default();
        objects.into_iter().for_each(|object| all.share(object));
        all
    }
}
