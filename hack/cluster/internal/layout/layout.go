// Package layout says where the cluster kit keeps what: paths, no I/O but look-ups.
package layout

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// RunDir holds the state of the cluster that is up: process ids, keys, kubeconfigs, logs. With a name it ends in a dash and the name.
const RunDir = "/run/istio-pod-network-controller-cluster"

// Layout names the kit's directories.
type Layout struct {
	// Source is the directory of this module.
	Source string
	// Cache keeps what is built, across runs and checkouts.
	Cache string
	// Run is RunDir, or another directory in tests.
	Run string
	// Name tells the clusters of a machine apart; most have none.
	Name string
}

// New fills in what is not given: the cache is the user's.
func New(source, cache, name string) (Layout, error) {
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return Layout{}, fmt.Errorf("the cluster's name %q (--name or KC_NAME) may have small letters and digits only", name)
	}
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return Layout{}, fmt.Errorf("find the cache directory (name one with --cache): %w", err)
		}
		cache = filepath.Join(dir, "istio-pod-network-controller", "cluster")
	}
	l := Layout{Source: source, Cache: cache, Name: name}
	l.Run = l.Named(RunDir)
	return l, nil
}

// Named is a path or a name that the clusters of a machine must not share.
func (l Layout) Named(what string) string {
	if l.Name == "" {
		return what
	}
	return what + "-" + l.Name
}

// Pins is the module that pins the cluster's programs.
func (l Layout) Pins() string { return filepath.Join(l.Source, "programs") }

// Data is where the node keeps images and containers and etcd its files. On a disk, not on the small tmpfs that /run often is.
func (l Layout) Data() string { return filepath.Join(l.Cache, l.Named("data")) }

// State is the file that records what is up.
func (l Layout) State() string { return filepath.Join(l.Run, "state.json") }

// Logs holds one file a daemon.
func (l Layout) Logs() string { return filepath.Join(l.Run, "log") }

// FailedLogs keeps the logs of the last start or boot that failed.
func (l Layout) FailedLogs() string { return filepath.Join(l.Cache, l.Named("failed-start")) }

// PKI holds keys and certificates.
func (l Layout) PKI() string { return filepath.Join(l.Run, "pki") }

// Kubeconfig is the file of one user of the API server.
func (l Layout) Kubeconfig(user string) string {
	return filepath.Join(l.Run, "kubeconfig", user+".yaml")
}
