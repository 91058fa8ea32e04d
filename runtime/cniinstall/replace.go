package cniinstall

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errChanged says that somebody else wrote, or took away, a file between our reading and our writing. Their version
// stands; look again.
var errChanged = errors.New("the file was changed meanwhile")

// maxSwaps bounds how often a file is handed back to projects that write it faster than we look: more than any can.
const maxSwaps = 1000

// replace puts now in the place of a file that holds was, keeping its owner and permission bits, so that readers find the
// one or the other, a power cut leaves one or the other, and nothing that anybody wrote is lost: the kernel swaps the two
// files, and what comes out is put back unless it is what was read.
func replace(path string, was, now []byte) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return errChanged
	}
	if err != nil {
		return err
	}
	temp, err := writeTemp(filepath.Dir(path), bytes.NewReader(now), info, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer os.Remove(temp) //nolint:errcheck // gone already where nothing was swapped
	err = swap(temp, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errChanged
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return replacePlainly(temp, path, was)
	case err != nil:
		return err
	}
	if err := settle(temp, path, was, now); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// settle judges what a swap brought out. Whatever is newer than what we read goes back, until what comes out is what we
// put in last.
func settle(temp, path string, was, placed []byte) error {
	out, err := os.ReadFile(temp) //nolint:gosec // our own
	if err != nil || bytes.Equal(out, was) {
		return err
	}
	for range maxSwaps {
		if err := swap(temp, path); err != nil {
			return fmt.Errorf("give back what others wrote: %w", err)
		}
		next, err := os.ReadFile(temp) //nolint:gosec // our own
		if err != nil {
			return err
		}
		if bytes.Equal(next, placed) {
			break
		}
		placed, out = out, next
	}
	return errChanged
}

// replacePlainly is for file systems that cannot swap (NFS, old ZFS): what is written in the instant between looking and
// moving is lost.
func replacePlainly(temp, path string, was []byte) error {
	there, err := os.ReadFile(path) //nolint:gosec // the directory that we were given
	if errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.Equal(there, was) {
		return errChanged
	}
	if err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func swap(a, b string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		return &os.LinkError{Op: "swap", Old: a, New: b, Err: err}
	}
	return nil
}

// moveNew moves a file to a name that must be free.
func moveNew(from, to string) error {
	if err := os.Link(from, to); err != nil {
		return err
	}
	return os.Remove(from)
}

// tempPattern names what is being written: no runtime reads a file of this extension.
const tempPattern = ".istio-pod-network-cni-*.tmp"

// writeTemp writes a file beside the one that it is to become, of the same owner as another one, down to the disk.
func writeTemp(dir string, from io.Reader, like fs.FileInfo, mode fs.FileMode) (name string, err error) {
	f, err := os.CreateTemp(dir, tempPattern)
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		at.Path = filepath.Join(dir, tempPattern) // equal words each time: what is tried again is told once
	}
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = io.Copy(f, from)
	if stat, ok := like.Sys().(*syscall.Stat_t); ok && err == nil {
		err = f.Chown(int(stat.Uid), int(stat.Gid))
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	return f.Name(), errors.Join(err, f.Close())
}

// tempAge is beyond what any writing takes.
const tempAge = time.Minute

// removeTemps takes away what an installer that was killed left behind, not what another one is writing. It is tidiness:
// where it cannot, nothing is lost.
func removeTemps(dir string) {
	temps, err := filepath.Glob(filepath.Join(dir, tempPattern))
	if err != nil {
		return
	}
	for _, path := range temps {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > tempAge {
			_ = os.Remove(path)
		}
	}
}

// syncDir makes a rename last.
func syncDir(dir string) error {
	d, err := os.Open(dir) //nolint:gosec // the directory that we were given
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
