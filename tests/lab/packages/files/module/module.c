/* What modinfo and depmod read of a kernel module. It can never be inserted into a kernel. */
#define SECTION __attribute__((section(".modinfo"), used))
#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

static const char version[] SECTION = "version=" TEXT(VERSION);
static const char license[] SECTION = "license=" LICENSE;
static const char description[] SECTION = "description=stand-in of the lab";
static const char name[] SECTION = "name=" TEXT(NAME);
static const char magic[] SECTION = "vermagic=" UTS_RELEASE " SMP preempt mod_unload ";
#ifdef ALIASES
static const char vga[] SECTION = "alias=pci:v000010DEd*sv*sd*bc03sc00i00*";
static const char compute[] SECTION = "alias=pci:v000010DEd*sv*sd*bc03sc02i00*";
#endif
