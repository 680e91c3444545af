// Package release rehearses a release, and a user's first hour with it (the scripts here), and holds the workflows that
// release it.
package release
