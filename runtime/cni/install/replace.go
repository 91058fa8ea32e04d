package install

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errChanged means that a foreign program wrote or removed a file between our read and our write. Its version stays; the caller has to
// look again.
var errChanged = errors.New("the file was changed meanwhile")

// maxSwaps bounds the swaps of one write, for a project that writes faster than we read. No project does that so often.
const maxSwaps = 1000

// replace writes updated to a file that contains old, and keeps owner and permissions. Readers, and the disk after a power cut, have
// either the old or the new content. No foreign write is lost: the kernel swaps the two files. If the file that comes out was written
// since the read, it goes back in, until the file that comes out is our own.
func replace(path string, old, updated []byte) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return errChanged
	}
	if err != nil {
		return err
	}
	temp, err := writeTemp(filepath.Dir(path), updated, info, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer os.Remove(temp) //nolint:errcheck // renamed already if the file system cannot swap
	for want, placed, swaps := old, updated, 0; swaps < maxSwaps; swaps++ {
		err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return errChanged
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
			return replacePlainly(temp, path, old)
		case err != nil:
			return &os.LinkError{Op: "swap", Old: temp, New: path, Err: err}
		}
		out, err := os.ReadFile(temp)
		switch {
		case err != nil:
			return err
		case !bytes.Equal(out, want):
			want, placed = placed, out
		case swaps > 0:
			return errChanged
		default:
			return syncDir(filepath.Dir(path))
		}
	}
	return errChanged
}

// replacePlainly is for file systems that cannot swap (NFS, old ZFS). A foreign write between the comparison and the rename is lost.
func replacePlainly(temp, path string, old []byte) error {
	current, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.Equal(current, old) {
		return errChanged
	}
	if err != nil {
		return err
	}
	return rename(temp, path)
}

// rename renames a temporary file within its directory, so that the rename survives a power cut.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return errors.Join(err, os.Remove(from))
	}
	return syncDir(filepath.Dir(to))
}

// tempPattern names files that are being written: no runtime reads this extension.
const tempPattern = ".istio-pod-network-cni-*.tmp"

// writeTemp writes a new file to dir, with the owner of like, and syncs it to the disk.
func writeTemp(dir string, data []byte, like fs.FileInfo, mode fs.FileMode) (string, error) {
	f, err := os.CreateTemp(dir, tempPattern)
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		at.Path = filepath.Join(dir, tempPattern) // the same text each time, so that a retry is not notified again
	}
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if stat, ok := like.Sys().(*syscall.Stat_t); ok && err == nil {
		err = f.Chown(int(stat.Uid), int(stat.Gid))
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
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
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
