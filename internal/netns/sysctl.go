package netns

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// SetSysctl sets a variable of the kernel's for a namespace, by its path below /proc/sys. In the agent's container /proc/sys is read-only, so it
// makes a procfs of its own, which is mounted nowhere.
func SetSysctl(n *NS, name, value string) error {
	return n.Inside(func() error {
		fs, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
		if err != nil {
			return fmt.Errorf("make a procfs: %w", err)
		}
		defer unix.Close(fs) //nolint:errcheck // nothing was written
		if err := unix.FsconfigCreate(fs); err != nil {
			return fmt.Errorf("make a procfs: %w", err)
		}
		root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return fmt.Errorf("make a procfs: %w", err)
		}
		defer unix.Close(root) //nolint:errcheck // nothing was written
		file, err := unix.Openat(root, "sys/"+name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_, err = unix.Write(file, []byte(value))
		return errors.Join(err, unix.Close(file))
	})
}
