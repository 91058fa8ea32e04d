#!/usr/bin/env bash
# Prints a directory with Debian's programs and policies of SELinux and AppArmor, for a machine of E2E_SECURITY. They are unpacked, not installed, and
# bring their own libraries. The first time, or when this file has changed, they are downloaded, and a policy for SELinux is made of the modules that
# container and kubernetes need, and of these rules:
#   - what runs outside of containers is a container engine, and unconfined, as RHEL's type container_runtime_t is
#   - the host's files, of which none has a label, are usr_t
set -euo pipefail

rules='(typeattributeset container_engine_domain (kernel_t))
(typeattributeset container_engine_system_domain (kernel_t))
(genfscon 9p "/" (system_u object_r usr_t ((s0) (s0))))'
modules=(machine.cil {base,clock,container,getty,iptables,kubernetes,lvm,unconfined,xdg,xserver}.pp.bz2)
packages=(apparmor libapparmor1 policycoreutils selinux-utils selinux-policy-default libsemanage2 libsemanage-common libsepol2 libselinux1 libaudit1
  libbz2-1.0 libcap-ng0 libpcre2-8-0 libc6)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/istio-pod-network-controller/kernels/security-$(sha256sum "$0" | cut -c1-16)
if [[ ! -d $dir ]]; then
  rm -rf "$dir.partial" && mkdir -p "$dir.partial"/{apt/lists/partial,apt/archives/partial,tmp,usr/{bin,lib,lib64,sbin},var/lib/selinux/default}
  cd "$dir.partial"
  ln -s usr/{bin,lib,lib64,sbin} .
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} trixie main" >apt/sources.list
  options=(-q -o "Dir::Etc::sourcelist=$PWD/apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$PWD/apt/lists" -o "Dir::Cache=$PWD/apt" -o APT::Sandbox::User=)
  apt-get "${options[@]}" update >&2
  apt-get "${options[@]}" download "${packages[@]}" >&2
  for package in *.deb; do dpkg-deb -x "$package" .; done
  rm -r -- apt *.deb
  printf 'SELINUX=enforcing\nSELINUXTYPE=default\n' >etc/selinux/config
  echo 'policy-version = 33' >>etc/selinux/semanage.conf # the newest that Linux 6.12 reads
  echo "$rules" >usr/share/selinux/default/machine.cil
  chroot . /usr/sbin/semodule -s default -n -N -i "${modules[@]/#/usr/share/selinux/default/}" >&2
  mv "$dir.partial" "$dir"
fi
echo "$dir"
