package home

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
)

// What is in the directory of one secret, as the kubelet lays out its volumes:
//
//	tls.crt -> ..data/tls.crt    a link for each file
//	..data  -> ..v1700000000     replaced by a rename: a reader sees one version, whole
//	..v1700000000/tls.crt        the files of one version, which do not change
const (
	dataLink      = "..data"
	nextLink      = "..next"
	versionPrefix = "..v"
)

// grant is what an epoch's proxy gets as secrets, without the secrets. It is kept in the home, for agents that start later, and because the
// profile may change while the proxy runs.
type grant struct {
	UID, GID int64
	Sources  []grantedSource
}

// grantedSource is a source, and when to read it again; zero is at every check.
type grantedSource struct {
	v1alpha1.SecretSource
	// TokenFile is the file of a token; "" is tokenFile, of grants by earlier agents.
	TokenFile string `json:",omitempty"`
	RenewAt   time.Time
}

func grantFile(secrets string) string { return secrets + jsonSuffix }

// readGrant returns what the proxy with a directory of secrets gets, which may be nothing.
func readGrant(secrets string) (grant, error) {
	g, err := ReadFile[grant](grantFile(secrets))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return g, fmt.Errorf("read what the proxy gets as secrets: %w", err)
	}
	return g, nil
}

// write replaces what is kept beside a directory of secrets, in one step.
func (g grant) write(secrets string) error {
	if err := ReplaceFile(grantFile(secrets), g); err != nil {
		return fmt.Errorf("keep what the proxy gets as secrets: %w", err)
	}
	return nil
}

type secretDir struct {
	path  string
	Owner Owner
}

// holds reports whether the proxy sees exactly these files.
func (d secretDir) holds(files map[string][]byte) bool {
	dir := filepath.Join(d.path, dataLink)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(files) {
		return false
	}
	for name, content := range files {
		if there, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(there, content) {
			return false
		}
	}
	return true
}

// replace shows the proxy other files. The version before stays until prune: the proxy may be about to open a file of it.
func (d secretDir) replace(files map[string][]byte, now time.Time) error {
	version := versionPrefix + strconv.FormatInt(now.UnixNano(), 10)
	dir := filepath.Join(d.path, version)
	if err := makeDir(dir, d.Owner); err != nil {
		return err
	}
	for name, content := range files {
		if err := WriteOwned(filepath.Join(dir, name), content, 0o400, d.Owner); err != nil {
			return err
		}
	}
	if err := ReplaceLink(filepath.Join(d.path, dataLink), version); err != nil {
		return err
	}
	return d.linkFiles(slices.Sorted(maps.Keys(files)))
}

// linkFiles makes a link for each file, and removes those of files that are gone.
func (d secretDir) linkFiles(names []string) error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("list the proxy's secret: %w", err)
	}
	for _, e := range entries {
		if e.Type() == os.ModeSymlink && !strings.HasPrefix(e.Name(), "..") && !slices.Contains(names, e.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(d.path, e.Name())))
		}
	}
	for _, name := range names {
		err = errors.Join(err, ReplaceLink(filepath.Join(d.path, name), filepath.Join(dataLink, name)))
	}
	return err
}

// ReplaceLink makes a link, or has it lead elsewhere in one step.
func ReplaceLink(link, to string) error {
	next := filepath.Join(filepath.Dir(link), nextLink)
	err := os.Remove(next) // of an agent that was killed
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = os.Symlink(to, next)
	}
	if err == nil {
		err = label(next)
	}
	if err == nil {
		err = os.Rename(next, link)
	}
	if err != nil {
		return fmt.Errorf("show the proxy its files: %w", err)
	}
	return nil
}

// prune removes the versions that the proxy does not see any more.
func (d secretDir) prune() error {
	now, _ := os.Readlink(filepath.Join(d.path, dataLink)) // "": there is none yet
	_, err := RemoveEach(d.path, false, func(e os.DirEntry) (bool, error) {
		return strings.HasPrefix(e.Name(), versionPrefix) && e.Name() != now, nil
	})
	return err
}
