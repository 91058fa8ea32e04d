package install

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

// errChanged means that somebody else wrote or removed a file between our read and our write. Their version stays; the caller has
// to look again.
var errChanged = errors.New("the file was changed meanwhile")

// maxSwaps bounds how often a file is put back for projects that write it faster than we read it. No project does that so often.
const maxSwaps = 1000

// replace writes updated to a file that contains old, and keeps owner and permissions. Readers, and the disk after a power cut, have
// either the old or the new content. Nothing that others wrote is lost: the kernel swaps the two files, and if the old one is not
// what was read, it is put back.
func replace(path string, old, updated []byte) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return errChanged
	}
	if err != nil {
		return err
	}
	temp, err := writeTemp(filepath.Dir(path), bytes.NewReader(updated), info, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer os.Remove(temp) //nolint:errcheck // gone already if nothing was swapped
	err = swap(temp, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errChanged
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return replacePlainly(temp, path, old)
	case err != nil:
		return err
	}
	if err := verifySwap(temp, path, old, updated); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// verifySwap checks the file that a swap has taken out. If it is newer than what we read, it is put back, until the file taken out is the one
// that we put in.
func verifySwap(temp, path string, old, placed []byte) error {
	out, err := os.ReadFile(temp) //nolint:gosec // our own
	if err != nil || bytes.Equal(out, old) {
		return err
	}
	for range maxSwaps {
		if err := swap(temp, path); err != nil {
			return fmt.Errorf("put back what others wrote: %w", err)
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

// replacePlainly is for file systems that cannot swap (NFS, old ZFS). What others write between the comparison and the rename is
// lost.
func replacePlainly(temp, path string, old []byte) error {
	current, err := os.ReadFile(path) //nolint:gosec // the directory that we were given
	if errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.Equal(current, old) {
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

// tempPattern names files that are being written: no runtime reads this extension.
const tempPattern = ".istio-pod-network-cni-*.tmp"

// writeTemp writes a new file to dir, with the owner of like, and syncs it to the disk.
func writeTemp(dir string, from io.Reader, like fs.FileInfo, mode fs.FileMode) (name string, err error) {
	f, err := os.CreateTemp(dir, tempPattern)
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		at.Path = filepath.Join(dir, tempPattern) // the same text each time, so that a retry is not notified again
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

// tempAge is longer than any write takes.
const tempAge = time.Minute

// removeTemps removes what a killed installer has left, and not what another one is writing. It ignores errors: a file that stays does
// no harm.
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

// syncDir makes a rename survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir) //nolint:gosec // the directory that we were given
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
