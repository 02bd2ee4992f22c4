// SPDX-License-Identifier: GPL-2.0
/*
 * fakebus: PCI functions that exist only in this module's config space tables,
 * so that a guest has functions with the identity of real accelerators (any
 * vendor, device, class, subsystem), with SR-IOV that works, FLR and link data.
 *
 *   echo "add 41 10de:20b5 030200 10de:1533 bar0=1M drv=nvidia vfs=4 vfdev=20b5" \
 *        > /sys/module/fakebus/parameters/ctl
 *   echo "add 82 8086:09c4 120000 8086:0000 bar0=1M dfl=1 node=1" > .../ctl
 *   echo "yank 41" > .../ctl     (surprise removal: config space reads ff)
 *   echo "plug 41" > .../ctl     (undoes yank)
 *   echo "del 41"  > .../ctl     (orderly removal)
 *   echo "hold nvidia" > .../ctl (that driver lets go of no function)
 *   echo "free nvidia" > .../ctl (undoes hold; not while a del waits for it)
 *
 * A function has one byte of its maker at 80 in its config space, which keeps what is
 * written to it. FLR clears it, and all else that was written to the function.
 *
 * drv= and vfdrv= are drivers that do nothing, one for the function and one for
 * its virtual functions, so that it has a driver of that name, as on a real host.
 *
 * The number is the bus (hex). If that bus exists and is empty (behind a
 * pcie-root-port of QEMU), the function appears there: it has an IOMMU group,
 * the bridge's NUMA node (pxb-pcie,numa_node=) and can be bound to vfio-pci;
 * its BARs lie in the bridge's window and read ff. Else a root bus is made:
 * no IOMMU group (QEMU's DMAR table lists scopes, not INCLUDE_PCI_ALL), but
 * node= sets the NUMA node, and BARs lie in real memory, so that dfl=1 can put
 * a device feature list there for dfl-pci. That memory must be reserved:
 * memmap=64M$0x38000000 on the kernel command line, base=0x38000000
 * size=0x4000000 as module parameters.
 */
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/io.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/kthread.h>
#include <linux/delay.h>
#include <linux/sizes.h>
#include <linux/wait.h>

static ulong base, size;
module_param(base, ulong, 0444);
module_param(size, ulong, 0444);

#define MAXVF 32
#define EXPCAP 0x40
#define SRIOV 0x100
#define KEEPS 0x80

struct fbus {
	struct list_head list;
	u8 nr, cfg[4096];
	u32 barsz[6];
	u16 vfs, vfdev;
	u8 vfofs;
	bool yanked, dfl;
	struct pci_sysdata sd;
	struct resource busn;
	struct pci_bus *bus;
	struct pci_ops *orig;	/* of a bus that was there before */
	void __iomem *io;
	struct task_struct *hw;
	u8 vfcfg[MAXVF][256];
};

static LIST_HEAD(buses);
static DEFINE_MUTEX(lock);
static DEFINE_SPINLOCK(cfglock);
static struct resource win = { .name = "fakebus", .flags = IORESOURCE_MEM };

#define MAXIDS 8
struct fdrv { struct list_head list; char name[32]; struct pci_driver drv; int n; u16 ids[MAXIDS][2]; bool held; };
static LIST_HEAD(drivers);
static DECLARE_WAIT_QUEUE_HEAD(freed);

static u16 r16(u8 *c, int o) { return c[o] | c[o + 1] << 8; }
static u32 r32(u8 *c, int o) { return r16(c, o) | (u32)r16(c, o + 2) << 16; }
static void w16(u8 *c, int o, u16 v) { c[o] = v; c[o + 1] = v >> 8; }
static void w32(u8 *c, int o, u32 v) { w16(c, o, v); w16(c, o + 2, v >> 16); }

static struct fbus *table[256];
static struct fbus *lookup(u8 nr) { return READ_ONCE(table[nr]); }

static u8 *find(struct fbus *b, unsigned int devfn, int *len, int *vf)
{
	int n;

	*vf = -1;
	if (!b || b->yanked)
		return NULL;
	if (!devfn) {
		*len = 4096;
		return b->cfg;
	}
	n = (int)devfn - b->vfofs;
	if (b->vfs && n >= 0 && n < r16(b->cfg, SRIOV + PCI_SRIOV_NUM_VF) &&
	    (r16(b->cfg, SRIOV + PCI_SRIOV_CTRL) & PCI_SRIOV_CTRL_VFE)) {
		*len = 256;
		*vf = n;
		return b->vfcfg[n];
	}
	return NULL;
}

static int fb_read(struct pci_bus *bus, unsigned int devfn, int where, int sz, u32 *val)
{
	struct fbus *b = lookup(bus->number);
	int len, vf;
	unsigned long fl;
	u8 *c;

	spin_lock_irqsave(&cfglock, fl);
	c = find(b, devfn, &len, &vf);
	if (!c) {
		*val = ~0;
	} else if (where + sz > len) {
		*val = 0;
	} else if (vf >= 0 && where < 4) {
		*val = ~0;	/* a VF reads ffff in its ID registers */
	} else {
		*val = sz == 1 ? c[where] : sz == 2 ? r16(c, where) : r32(c, where);
	}
	spin_unlock_irqrestore(&cfglock, fl);
	return c ? PCIBIOS_SUCCESSFUL : PCIBIOS_DEVICE_NOT_FOUND;
}

static void flr(struct fbus *b, u8 *c, int vf)
{
	int i;

	w16(c, PCI_COMMAND, 0);
	c[PCI_INTERRUPT_LINE] = 0;
	c[KEEPS] = 0;
	w16(c, EXPCAP + PCI_EXP_DEVCTL, 0);
	if (vf >= 0)
		return;
	for (i = 0; i < 6; i++)
		w32(c, PCI_BASE_ADDRESS_0 + 4 * i, 0);
	if (b->vfs) {
		w16(c, SRIOV + PCI_SRIOV_CTRL, 0);
		w16(c, SRIOV + PCI_SRIOV_NUM_VF, 0);
		w32(c, SRIOV + PCI_SRIOV_SYS_PGSIZE, 1);
	}
}

static int fb_write(struct pci_bus *bus, unsigned int devfn, int where, int sz, u32 val)
{
	struct fbus *b = lookup(bus->number);
	int len, vf, i;
	unsigned long fl;
	u8 *c;

	spin_lock_irqsave(&cfglock, fl);
	c = find(b, devfn, &len, &vf);
	if (!c || where + sz > len)
		goto out;
	if (where >= PCI_BASE_ADDRESS_0 && where < PCI_BASE_ADDRESS_0 + 24) {
		i = (where - PCI_BASE_ADDRESS_0) / 4;
		if (vf < 0 && sz == 4 && b->barsz[i])
			w32(c, where, val & ~(b->barsz[i] - 1));
	} else if (where == EXPCAP + PCI_EXP_DEVCTL && (val & PCI_EXP_DEVCTL_BCR_FLR)) {
		flr(b, c, vf);
	} else if (where == PCI_COMMAND || where == PCI_INTERRUPT_LINE || where == KEEPS ||
		   where == EXPCAP + PCI_EXP_DEVCTL ||
		   (vf < 0 && b->vfs && (where == SRIOV + PCI_SRIOV_CTRL ||
					 where == SRIOV + PCI_SRIOV_NUM_VF ||
					 where == SRIOV + PCI_SRIOV_SYS_PGSIZE))) {
		for (i = 0; i < sz; i++)
			c[where + i] = val >> (8 * i);
	}
out:
	spin_unlock_irqrestore(&cfglock, fl);
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops ops = { .read = fb_read, .write = fb_write };

static void pcie_cap(u8 *c)
{
	w16(c, PCI_STATUS, PCI_STATUS_CAP_LIST);
	c[PCI_CAPABILITY_LIST] = EXPCAP;
	c[EXPCAP] = PCI_CAP_ID_EXP;
	w16(c, EXPCAP + PCI_EXP_FLAGS, 2);		/* v2, endpoint */
	w32(c, EXPCAP + PCI_EXP_DEVCAP, PCI_EXP_DEVCAP_FLR | PCI_EXP_DEVCAP_RBER);
	w32(c, EXPCAP + PCI_EXP_LNKCAP, 4 | 16 << 4);	/* 16 GT/s x16 */
	w16(c, EXPCAP + PCI_EXP_LNKSTA, 4 | 16 << 4);
}

/* one FME with the PR feature and one port with an AFU: what dfl-pci expects */
#define PORT_OFS 0x40000
#define AFU_OFS 0x1000
static void dfl_image(void __iomem *io)
{
	u64 id[2] = { 0x9aeffe5f84570612ULL, 0xc000c9660d824272ULL };
	u64 afu[2] = { 0xa5e31f9d3b1c2d4eULL, 0x1c1d2e3f40516273ULL };

	memset_io(io, 0, 0x80000);
	writeq(4ULL << 60 | 0x1000 << 16 | 0, io);		/* FIU FME */
	writeq(0x82fe38f0f9e17764ULL, io + 8);
	writeq(0xbfaf2ae94a5246e3ULL, io + 0x10);
	writeq(1 << 17 | 0x14ULL << 24, io + 0x30);		/* 1 port */
	writeq(1ULL << 60 | PORT_OFS, io + 0x38);		/* BAR0 */
	writeq(0x23000110c7e50abcULL, io + 0x60);		/* bitstream id */
	writeq(0x0000000022112602ULL, io + 0x68);
	writeq(3ULL << 60 | 1ULL << 40 | 5, io + 0x1000);	/* PR_MGMT, EOL */
	writeq(id[1], io + 0x1000 + 0xa8);
	writeq(id[0], io + 0x1000 + 0xb0);
	io += PORT_OFS;
	writeq(4ULL << 60 | 1ULL << 40 | 1, io);		/* FIU port, EOL */
	writeq(AFU_OFS, io + 0x18);				/* next AFU */
	writeq(64 << 8 | 0, io + 0x30);				/* 64 KiB MMIO */
	writeq(0x11, io + 0x38);				/* in reset */
	writeq(1ULL << 60 | 1ULL << 40, io + AFU_OFS);
	writeq(afu[1], io + AFU_OFS + 8);
	writeq(afu[0], io + AFU_OFS + 0x10);
}

static int dfl_hw(void *arg)
{
	struct fbus *b = arg;
	void __iomem *ctl = b->io + PORT_OFS + 0x38;

	while (!kthread_should_stop()) {
		u64 v = readq(ctl);

		if (!!(v & 1) != !!(v & 0x10))	/* SFTRST -> SFTRST_ACK */
			writeq((v & ~0x10ULL) | (v & 1) << 4, ctl);
		usleep_range(100, 200);
	}
	return 0;
}

static int drv_probe(struct pci_dev *d, const struct pci_device_id *id) { return 0; }
static void drv_remove(struct pci_dev *d)
{
	struct fdrv *f = container_of(to_pci_driver(d->dev.driver), struct fdrv, drv);

	/* No signal ends this sleep, and the kernel does not complain about its length. */
	wait_event_idle(freed, !READ_ONCE(f->held));
	pci_disable_sriov(d);
}
static const struct pci_device_id none[] = { { 0 } };

static int bind_driver(const char *name, u16 v, u16 d)
{
	struct fdrv *f;
	int rc, i;

	list_for_each_entry(f, &drivers, list)
		if (!strcmp(f->name, name))
			goto have;
	f = kzalloc(sizeof(*f), GFP_KERNEL);
	if (!f)
		return -ENOMEM;
	strscpy(f->name, name, sizeof(f->name));
	f->drv.name = f->name;
	f->drv.id_table = none;
	f->drv.probe = drv_probe;
	f->drv.remove = drv_remove;
	f->drv.sriov_configure = pci_sriov_configure_simple;
	rc = pci_register_driver(&f->drv);
	if (rc) {
		kfree(f);
		return rc;
	}
	list_add(&f->list, &drivers);
have:
	/* A new id binds every function that has it and no driver, also one that
	 * somebody has just unbound. A known one has bound the new card already. */
	for (i = 0; i < f->n; i++)
		if (f->ids[i][0] == v && f->ids[i][1] == d)
			return 0;
	if (f->n == MAXIDS)
		return -ENOSPC;
	rc = pci_add_dynid(&f->drv, v, d, PCI_ANY_ID, PCI_ANY_ID, 0, 0, 0);
	if (!rc) {
		f->ids[f->n][0] = v;
		f->ids[f->n++][1] = d;
	}
	return rc;
}

static void drop(struct fbus *b)
{
	struct pci_dev *d;

	list_del(&b->list);
	pci_lock_rescan_remove();
	if (b->orig) {
		d = pci_get_slot(b->bus, 0);
		if (d) {
			pci_disable_sriov(d);
			pci_stop_and_remove_bus_device(d);
			pci_dev_put(d);
		}
		pci_bus_set_ops(b->bus, b->orig);
	} else {
		pci_stop_root_bus(b->bus);
		pci_remove_root_bus(b->bus);
	}
	pci_unlock_rescan_remove();
	WRITE_ONCE(table[b->nr], NULL);
	if (b->hw)
		kthread_stop(b->hw);
	if (b->io)
		iounmap(b->io);
	kfree(b);
}

static int add(char *s)
{
	unsigned int nr, v, d, sv, sd, cls, vfs = 0, vfdev = 0, vfofs = 1, dfl = 0, i;
	int node = NUMA_NO_NODE, rc = 0;
	char *tok, drv[32] = "", vfdrv[32] = "";
	struct pci_dev *pdev;
	struct pci_bus *bus;
	struct fbus *b;
	ulong at;
	LIST_HEAD(res);

	tok = strsep(&s, " ");
	if (!tok || kstrtouint(tok, 16, &nr) || !nr || nr > 0xfe || !s ||
	    sscanf(s, "%x:%x %x %x:%x", &v, &d, &cls, &sv, &sd) != 5)
		return -EINVAL;
	bus = pci_find_bus(0, nr);
	if (table[nr] || (bus && !list_empty(&bus->devices)))
		return -EEXIST;
	b = kzalloc(sizeof(*b), GFP_KERNEL);
	if (!b)
		return -ENOMEM;
	while ((tok = strsep(&s, " \n"))) {
		if (sscanf(tok, "vfs=%u", &vfs) == 1 || sscanf(tok, "vfdev=%x", &vfdev) == 1 ||
		    sscanf(tok, "vfofs=%u", &vfofs) == 1 || sscanf(tok, "node=%d", &node) == 1 ||
		    sscanf(tok, "drv=%31s", drv) == 1 || sscanf(tok, "vfdrv=%31s", vfdrv) == 1 ||
		    sscanf(tok, "dfl=%u", &dfl) == 1)
			continue;
		if (!strncmp(tok, "bar", 3) && tok[3] >= '0' && tok[3] <= '5' && tok[4] == '=')
			b->barsz[tok[3] - '0'] = roundup_pow_of_two(memparse(tok + 5, NULL));
	}
	if (vfs > MAXVF || !vfofs) {
		kfree(b);
		return -EINVAL;
	}
	b->nr = nr; b->vfs = vfs; b->vfdev = vfdev; b->vfofs = vfofs; b->dfl = dfl;
	b->sd.domain = 0;
	b->sd.node = node;
	w16(b->cfg, PCI_VENDOR_ID, v);
	w16(b->cfg, PCI_DEVICE_ID, d);
	w32(b->cfg, PCI_CLASS_REVISION, cls << 8 | 0xa1);
	w16(b->cfg, PCI_SUBSYSTEM_VENDOR_ID, sv);
	w16(b->cfg, PCI_SUBSYSTEM_ID, sd);
	pcie_cap(b->cfg);
	if (vfs) {
		u8 *c = b->cfg + SRIOV;

		w32(c, 0, PCI_EXT_CAP_ID_SRIOV | 1 << 16);
		w16(c, PCI_SRIOV_INITIAL_VF, vfs);
		w16(c, PCI_SRIOV_TOTAL_VF, vfs);
		w16(c, PCI_SRIOV_VF_OFFSET, vfofs);
		w16(c, PCI_SRIOV_VF_STRIDE, 1);
		w16(c, PCI_SRIOV_VF_DID, vfdev);
		w32(c, PCI_SRIOV_SUP_PGSIZE, 0x553);
		w32(c, PCI_SRIOV_SYS_PGSIZE, 1);
		for (i = 0; i < vfs; i++) {
			w32(b->vfcfg[i], PCI_CLASS_REVISION, cls << 8 | 0xa1);
			w16(b->vfcfg[i], PCI_SUBSYSTEM_VENDOR_ID, sv);
			w16(b->vfcfg[i], PCI_SUBSYSTEM_ID, sd);
			pcie_cap(b->vfcfg[i]);
		}
	}
	WRITE_ONCE(table[nr], b);
	if (bus) {
		list_add(&b->list, &buses);
		b->bus = bus;
		pci_lock_rescan_remove();
		b->orig = pci_bus_set_ops(bus, &ops);
		pci_rescan_bus(bus);
		pci_unlock_rescan_remove();
		goto driver;
	}
	/* 4 MiB of the window for each root bus; the BARs are preset in it */
	at = win.start + (nr & 0xf) * SZ_4M;
	for (i = 0; i < 6 && win.parent; i++)
		if (b->barsz[i]) {
			at = ALIGN(at, b->barsz[i]);
			w32(b->cfg, PCI_BASE_ADDRESS_0 + 4 * i, at);
			at += b->barsz[i];
		}
	b->busn = (struct resource){ .name = "fakebus", .start = nr, .end = nr, .flags = IORESOURCE_BUS };
	pci_add_resource(&res, &b->busn);
	if (win.parent)
		pci_add_resource(&res, &win);

	pci_lock_rescan_remove();
	b->bus = pci_create_root_bus(NULL, nr, &ops, &b->sd, &res);
	if (!b->bus) {
		pci_unlock_rescan_remove();
		pci_free_resource_list(&res);
		WRITE_ONCE(table[nr], NULL);
		kfree(b);
		return -EIO;
	}
	list_add(&b->list, &buses);
	pci_scan_child_bus(b->bus);
	pci_bus_claim_resources(b->bus);
	pdev = pci_get_slot(b->bus, 0);
	if (dfl && pdev && pci_resource_len(pdev, 0) >= 0x80000) {
		b->io = ioremap(pci_resource_start(pdev, 0), 0x80000);
		if (b->io) {
			dfl_image(b->io);
			b->hw = kthread_run(dfl_hw, b, "fakebus-dfl");
		}
	}
	pci_dev_put(pdev);
	pci_bus_add_devices(b->bus);
	pci_unlock_rescan_remove();
driver:
	if (*drv)
		rc = bind_driver(drv, v, d);
	if (!rc && *vfdrv)
		rc = bind_driver(vfdrv, v, vfdev);
	return rc;
}

static int ctl_set(const char *val, const struct kernel_param *kp)
{
	char *dup = kstrdup(val, GFP_KERNEL), *s, *cmd;
	struct fbus *b, *n;
	struct fdrv *f;
	unsigned int nr;
	int rc = -EINVAL;

	if (!dup)
		return -ENOMEM;
	s = strim(dup);
	cmd = strsep(&s, " ");
	mutex_lock(&lock);
	if (!strcmp(cmd, "add") && s) {
		rc = add(s);
	} else if (s && (!strcmp(cmd, "hold") || !strcmp(cmd, "free"))) {
		rc = -ENODEV;
		list_for_each_entry(f, &drivers, list)
			if (!strcmp(f->name, s)) {
				rc = 0;
				WRITE_ONCE(f->held, !strcmp(cmd, "hold"));
				wake_up_all(&freed);
			}
	} else if (s && !kstrtouint(s, 16, &nr)) {
		rc = -ENODEV;
		list_for_each_entry_safe(b, n, &buses, list)
			if (b->nr == nr) {
				rc = 0;
				if (!strcmp(cmd, "yank"))
					b->yanked = true;
				else if (!strcmp(cmd, "plug"))
					b->yanked = false;
				else if (!strcmp(cmd, "del"))
					drop(b);
				else
					rc = -EINVAL;
			}
	}
	mutex_unlock(&lock);
	kfree(dup);
	return rc;
}

static const struct kernel_param_ops ctl_ops = { .set = ctl_set };
module_param_cb(ctl, &ctl_ops, NULL, 0200);

static int __init fb_init(void)
{
	if (base && size) {
		win.start = base;
		/* smaller than the reserved range, so as to lie inside it */
		win.end = base + size - PAGE_SIZE - 1;
		return insert_resource(&iomem_resource, &win);
	}
	return 0;
}

static void __exit fb_exit(void)
{
	struct fbus *b, *n;
	struct fdrv *f, *m;

	list_for_each_entry_safe(b, n, &buses, list)
		drop(b);
	list_for_each_entry_safe(f, m, &drivers, list) {
		pci_unregister_driver(&f->drv);
		kfree(f);
	}
	if (win.parent)
		remove_resource(&win);
}

module_init(fb_init);
module_exit(fb_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("PCI functions with a chosen identity, for tests");
