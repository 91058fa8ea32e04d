package home

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// labelName is the extended attribute by which SELinux knows a file, labelSize more than a label's length in bytes.
const (
	labelName = "security.selinux"
	labelSize = 4096
)

// label gives what the agent has made the SELinux label of the directory that it is in. The runtime labels a proxy's directories once, when it makes
// the container; the kernel gives what is made in them later the categories of the agent's process, with which the proxy may not read it. The agent must
// own path still: it has no CAP_FOWNER. Without SELinux there is no label. A policy may keep the agent from labelling; what it makes has its own label then.
func label(path string) error {
	want, err := labelOf(filepath.Dir(path))
	if err != nil || want == nil {
		return err
	}
	have, err := labelOf(path)
	if err != nil || bytes.Equal(have, want) {
		return err
	}
	if err := unix.Lsetxattr(path, labelName, want, 0); err != nil && !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("give %s the SELinux label of its directory, %q: %w", path, want, err)
	}
	return nil
}

// labelOf returns the label of a path itself, which may be a link, or nil if it has none.
func labelOf(path string) ([]byte, error) {
	text := make([]byte, labelSize)
	n, err := unix.Lgetxattr(path, labelName, text)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the SELinux label of %s: %w", path, err)
	}
	return text[:n], nil
}
